"""The command line; each process notes which files and folders it writes.

FLIGHTNING_WRITES=FILE python -m tests.strategies.audited fit ...
"""

import os
import sys

from flightning.__main__ import main

#: Events of Python that change the file system, and where their arguments name what is changed.
EVENTS = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def listen(event, arguments):
    changed = [arguments[i] for i in EVENTS.get(event, ())]
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
        changed = [arguments[0]]
    for path in changed:
        if isinstance(path, (str, os.PathLike)):
            os.write(notes, f"{os.path.abspath(path)}\n".encode())


if __name__ == "__main__":
    notes = os.open(f"{os.environ['FLIGHTNING_WRITES']}-{os.environ.get('LOCAL_RANK', '0')}", os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(listen)
    raise SystemExit(main())
