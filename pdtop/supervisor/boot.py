"""Starts an engine's module inside the engine's own interpreter, bound to its parent's life; needs no pdtop.

What stands on a command line is seen by every user of the machine, so keys come through standard input, as
JSON: ``{"parent": PID, "flags": [...]}``. The kernel kills this process when the parent has gone.
"""

import sys


def main() -> None:
    del sys.path[0]  # this folder: its names are not to hide the engine's own modules
    import ctypes
    import json
    import os
    import runpy
    import signal

    told = json.load(sys.stdin)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != told["parent"]:  # it went before the kernel was told
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    module = sys.argv[1]
    sys.argv = [module, *sys.argv[2:], *told["flags"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
