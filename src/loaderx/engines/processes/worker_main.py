"""The first lines that a worker process runs.  Not imported by anything."""

if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    import sys

    _name, _number, _workers, _parent, _descriptors = sys.argv[-5:]
    _given = [int(descriptor) for descriptor in _descriptors.split(",")]

    import marshal
    import os
    import struct

    # `pickling` put `sys.path` first: loaderx itself may only be found through it.
    (_length,) = struct.unpack("<Q", os.pread(_given[0], 8, 0))
    sys.path[:], sys.argv[:] = marshal.loads(os.pread(_given[0], _length, 32))

    from loaderx.engines.processes.worker import main

    main(_name, int(_number), int(_workers), int(_parent), _given)
