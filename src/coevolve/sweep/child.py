"""``coevolve train`` for a sweep: it ends with the sweep, however that ends.

Standard input is a pipe that the sweep holds. When it closes, because the sweep was interrupted or is no more (killed,
out of memory), the training is interrupted as by Ctrl-C and can be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_GRACE = 30.0  # seconds; a checkpoint cut short is not one, so nothing is lost after them


def _end_with_the_sweep() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    from coevolve import cli

    sys.exit(cli.main())
