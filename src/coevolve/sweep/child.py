"""The process of one command of ``coevolve`` in a sweep, which ends when the sweep ends, for whatever reason.

Standard input is a pipe whose other end the sweep holds. When that closes, because the sweep was interrupted or died
(killed, out of memory), the command is interrupted as by Ctrl-C; a training can be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_GRACE = 30.0  # seconds until a hard exit, which loses nothing: a partly written checkpoint does not count as one


def _end_with_the_sweep() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by default in a shell's background jobs
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    try:
        from coevolve import cli
    except KeyboardInterrupt:  # stopped while it loads, when nothing has begun
        sys.exit(130)
    sys.exit(cli.main())
