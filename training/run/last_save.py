"""The save of the last completed step, by the thread that ends this process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from howdah.errors import HowdahError


class LastSave:
    """Saves the last completed step on rank 0 if the loop cannot: the main thread hangs in a
    collective, or an exception has ended the loop.

    Args:
        allowed: returns True if this process may save now.
        say: called with a line about a failed save.
    """

    def __init__(self, *, allowed: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._allowed, self._say = allowed, say
        self._save: Callable[[], None] | None = None
        self.lock = threading.Lock()
        """Lock that is held during the save, so that no other thread ends the process meanwhile."""

    def arm(self, save: Callable[[], None] | None) -> None:
        """Set the function that saves; None: there is nothing to save.

        Args:
            save: called in any thread, once. It may read weights under `Run.update_lock`, must
                neither change anything nor enter a collective, and must wait for the checkpoint.
        """
        self._save = save

    def save(self) -> None:
        """Save, once; do nothing on ranks other than 0, or if nothing is armed."""
        with self.lock:
            save, self._save = self._save, None
            if save is None or not self._allowed():
                return
            try:
                save()
            except HowdahError as error:
                self._say(f"the last completed step could not be saved: {error.what}")
