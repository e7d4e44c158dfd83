"""The one place where errors of the two tokenizer libraries become ours.

Both are written in Rust. `tokenizers` raises plain Exception for whatever it refuses; either panics where it did not
expect a value, and a panic is a class that cannot be imported and is no Exception. Start at `guarded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statewell.errors import StatewellError


@contextmanager
def guarded(refusal: Callable[[BaseException], StatewellError]) -> Iterator[None]:
    """Run a call into a tokenizer library; raise what `refusal` makes of anything the library raises."""
    try:
        yield
    except Exception as error:
        raise refusal(error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise refusal(error) from error
