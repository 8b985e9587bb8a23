"""numpy and pyarrow, without types.

The type checkers must say the same whether the extra ``spark`` is installed or not, and pyarrow
brings no types of its own. So the rest of `twinlog.spark` takes both from here and declares what
it gets from them. No other module imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    np: Any
    pa: Any
else:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute  # noqa: F401 - pa.compute is there only then

__all__ = ["np", "pa"]
