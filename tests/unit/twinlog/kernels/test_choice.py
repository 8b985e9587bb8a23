"""Which kernels run: what `TWINLOG_KERNELS` asks for, what is built, and whether it is stale."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import ModuleType

import pytest

from twinlog import kernels
from twinlog.errors import UsageError
from twinlog.kernels import fields, plain


class Built(ModuleType):
    """Stands for the compiled module."""

    DIGEST = "old"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    """A compiled module of other sources than those beside it."""
    module = Built("twinlog.kernels._compiled")
    real = importlib.import_module

    def find(name: str) -> ModuleType:
        return module if name == "twinlog.kernels._compiled" else real(name)

    monkeypatch.setattr(importlib, "import_module", find)
    return module


def choose(monkeypatch: pytest.MonkeyPatch, wanted: str) -> tuple[ModuleType, str]:
    monkeypatch.setenv("TWINLOG_KERNELS", wanted)
    return kernels.load()


def test_python_is_python(monkeypatch: pytest.MonkeyPatch, built: Built) -> None:
    """Asked for, the twins run, whatever is built."""
    assert choose(monkeypatch, "python") == (plain, "TWINLOG_KERNELS=python")


def test_a_stale_build_is_not_used(monkeypatch: pytest.MonkeyPatch, built: Built) -> None:
    """One warning that names the command to build; no silence when it was asked for."""
    with pytest.warns(RuntimeWarning, match="reinstall-package twinlog"):
        assert choose(monkeypatch, "auto")[0] is plain
    with pytest.raises(UsageError) as caught:
        choose(monkeypatch, "compiled")
    assert "other sources" in str(caught.value)


def test_a_fresh_build_is_used(monkeypatch: pytest.MonkeyPatch, built: Built) -> None:
    """Also where the sources do not lie beside it, as in a stripped installation."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(kernels, "sources_digest", lambda: "old")
        assert choose(monkeypatch, "auto")[0] is built
        monkeypatch.setattr(kernels, "sources_digest", lambda: None)
        assert choose(monkeypatch, "compiled")[0] is built


def test_nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the twins run, unless compiled ones were asked for."""
    real = importlib.import_module

    def missing(name: str) -> ModuleType:
        if name == "twinlog.kernels._compiled":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert choose(monkeypatch, "auto") == (plain, "they are not built for this Python")
    with pytest.raises(UsageError):
        choose(monkeypatch, "compiled")


def test_an_unknown_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three words are named."""
    with pytest.raises(UsageError) as caught:
        choose(monkeypatch, "fast")
    assert caught.value.hint == "use compiled, python or auto"


def test_the_digest_is_that_of_the_sources() -> None:
    """What the build wrote into the module, the loader computes."""
    digest = kernels.sources_digest()
    assert digest is not None
    if kernels.which() == "compiled":
        compiled = importlib.import_module("twinlog.kernels._compiled")
        assert digest == compiled.DIGEST


def test_without_the_fast_library_the_checksums_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No wheel for a machine makes it slower, not different."""
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    spec = importlib.util.spec_from_file_location("fields_alone", fields.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    for data in (b"", b"x", bytes(range(256)) * 40):
        assert alone.crc32(data, 7) == fields.crc32(data, 7)


def test_every_compiled_function_is_used() -> None:
    """What the package hands out is the compiled function, wherever there is one; else none is."""
    if kernels.which() == "python":
        handed_out = [value for value in vars(kernels).values() if callable(value)]
        assert all("_compiled" not in getattr(value, "__module__", "") for value in handed_out)
        return
    compiled = importlib.import_module("twinlog.kernels._compiled")
    handed = {
        name: value
        for name, value in vars(kernels).items()
        if hasattr(compiled, name) and callable(value) and not name.startswith("_")
    }
    assert len(handed) >= 30
    assert all(value is getattr(compiled, name) for name, value in handed.items())
