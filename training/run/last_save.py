"""The save of the last completed step, by whichever thread ends this process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from howdah.errors import HowdahError


class LastSave:
    """How rank 0 saves the last completed step where its loop cannot: the main thread hangs in a
    collective, or an exception has ended the loop.

    Args:
        allowed: this process may save now.
        say: takes a line about a save that failed.
    """

    def __init__(self, *, allowed: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._allowed, self._say = allowed, say
        self._save: Callable[[], None] | None = None
        self.lock = threading.Lock()
        """Held while it saves, so that no other thread ends the process meanwhile."""

    def arm(self, save: Callable[[], None] | None) -> None:
        """Set how to save; None: there is nothing to save.

        Args:
            save: called in any thread, once. It may read weights, under `Run.update_lock`, and must
                neither change anything nor enter a collective; it must wait for the checkpoint.
        """
        self._save = save

    def save(self) -> None:
        """Save, once; nothing on ranks other than 0, or where nothing is armed."""
        with self.lock:
            save, self._save = self._save, None
            if save is None or not self._allowed():
                return
            try:
                save()
            except HowdahError as error:
                self._say(f"the last completed step could not be saved: {error.what}")
