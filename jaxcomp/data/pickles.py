"""Read the pickled batches of CIFAR without running code that a pickle may contain."""

import io
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any

import numpy as np

from .dataset import DataError

__all__ = ["read_batch"]

# What unpickling damaged data raises.
_DAMAGE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


def read_batch(data: bytes, where: str) -> dict[str, Any]:
    """Unpickle a dictionary of NumPy arrays and plain values.

    A pickle can run code by naming a class or function to call. Only the names that
    NumPy arrays need are allowed here, most of them replaced by functions of this file.
    Everything else is refused before it is imported.

    Args:
      data: the pickled dictionary, from Python 2 or 3.
      where: file name for messages.

    Returns:
      The dictionary, with text keys.

    Raises:
      DataError: the pickle names something else, is damaged, or is no dictionary.

    Example:
      >>> read_batch(pickle.dumps({b"labels": [3]}), "data_batch_1")
      {'labels': [3]}
    """
    try:
        _check_places(data)
        # Python 2 stored pixels as byte strings.
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _DAMAGE as error:
        raise DataError(f"{where}: damaged or refused pickle: {error}") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: holds a {type(batch).__name__}, expected a dict")
    return {_text(key): value for key, value in batch.items()}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that allows NumPy arrays and plain values only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The replacement of an allowed name; nothing is imported."""
        full_name = f"{module_name}.{global_name}"
        if full_name not in _ADMITTED:
            raise pickle.UnpicklingError(
                f"it names {full_name}, and only arrays are admitted "
                f"({', '.join(sorted(_ADMITTED))})"
            )
        return _ADMITTED[full_name]


def _check_places(data: bytes) -> None:
    """Refuse a pickle that takes more memory than it has bytes.

    Python makes room for a whole string, and for all places below one that is used.
    """
    for code, value, _ in pickletools.genops(data):
        if "PUT" in code.name and value not in range(len(data)):
            raise pickle.UnpicklingError(f"it uses place {value} of {len(data)}")


def _empty_array(*_ignored: Any) -> np.ndarray:
    """Replaces NumPy's `_reconstruct`; shape and content are set by the state after it.

    It ignores the shape in the pickle, which could ask for a huge allocation.
    """
    return np.empty(0, np.uint8)


def _from_buffer(buffer: bytes, dtype: np.dtype, shape: Any, order: Any) -> np.ndarray:
    """Replaces NumPy's `_frombuffer`, with which protocol 5 stores arrays."""
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


def _latin1(text: str, encoding: str) -> bytes:
    """Replaces `_codecs.encode`, with which Python 3 stores bytes in protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


_ADMITTED: Mapping[str, Any] = {
    "numpy.core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray._reconstruct": _empty_array,  # NumPy 2 renamed it
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
    # Arrays pass it to `_reconstruct`. Here it is not callable, so that a pickle cannot
    # create a huge array with it.
    "numpy.ndarray": "ndarray",
    "numpy.dtype": np.dtype,
    "_codecs.encode": _latin1,
}
