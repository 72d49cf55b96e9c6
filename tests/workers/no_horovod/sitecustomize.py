"""On PYTHONPATH, it makes a process one of an environment without Horovod."""

import sys


class NoHorovod:
    """The first finder that is asked for a module."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoHorovod())
