"""Build the compiled kernels; everything else is declared in pyproject.toml.

The extension is optional: without a C compiler the plain-Python twins run (docs/architecture.md).
"""

from setuptools import setup

setup()
