"""The first lines that a worker process runs.  Not imported by anything."""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer, who decides

if __name__ == "__main__":
    import sys

    _, _name, _number, _workers, _fds = sys.argv
    _data, _ring, _tasks, _reports, _stacks, _lifeline = map(int, _fds.split(","))

    import marshal
    import os
    import struct

    # What `ship` put first: `sys.path`, since loaderx itself may be found through it only.
    (_length,) = struct.unpack("<Q", os.pread(_data, 8, 0))
    sys.path[:], sys.argv[:] = marshal.loads(os.pread(_data, _length, 24))

    from loaderx.engines.processes.worker import main

    main(_name, int(_number), int(_workers), _data, _ring, _tasks, _reports, _stacks, _lifeline)
