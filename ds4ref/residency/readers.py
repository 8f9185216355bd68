"""Threads that read pieces of a file into memory, the most urgent first, bypassing the operating system's page cache.

Several threads are needed to keep a disk busy; the page cache would hold every byte a second time.
"""

from __future__ import annotations

import heapq
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count

from ds4ref.kernels.system import open_uncached

from ..errors import BackendError, ModelFileError

NOW, SOON, SOMETIME = range(3)
"""Urgency of a read: a pass waits for it; the running pass will need it later; no pass has asked for it."""


class Job:
    """One piece of work for a reading thread, which calls ``run(handles)`` with its own file descriptors, one for each
    file. ``error`` is the exception that ``run`` raised, None without one."""

    def __init__(self, run: Callable[[Sequence[int]], None], urgency: int):
        self.run, self.urgency = run, urgency
        self.begun = self.done = False
        self.error: BaseException | None = None


class Readers:
    """A pool of ``threads`` reading threads, each with its own descriptors of the files at ``paths``.

    size: total bytes of the files when the model was opened; raise ModelFileError if it has changed.
    """

    def __init__(self, paths: Sequence[str], size: int, threads: int):
        self.path = path = paths[0]
        self.lock = threading.RLock()
        self._queued, self._finished = threading.Condition(self.lock), threading.Condition(self.lock)
        self._queue: list[tuple[int, int, Job]] = []
        self._numbers = count()
        self._closed, self._process = False, os.getpid()
        self._handles: list[list[int]] = []
        try:
            for _ in range(threads):
                self._handles.append([])
                for path in paths:
                    self._handles[-1].append(open_uncached(path))
            if sum(os.fstat(handle).st_size for handle in self._handles[0]) != size:
                raise ModelFileError(path, "the file has changed since it was opened")
        except OSError as error:
            self._close_handles()
            raise ModelFileError(path, f"cannot open: {error.strerror}") from None
        except BaseException:
            self._close_handles()
            raise
        self._threads = [
            threading.Thread(target=self._work, args=(handles,), name=f"ds4ref-reader-{number}", daemon=True)
            for number, handles in enumerate(self._handles)
        ]
        for thread in self._threads:
            thread.start()

    def _close_handles(self) -> None:
        for handle in chain.from_iterable(self._handles):
            os.close(handle)
        self._handles.clear()

    def check_process(self) -> None:
        """Raise BackendError in a child of the process that opened the file: threads do not survive a fork."""
        if os.getpid() != self._process:
            raise BackendError(f"{self.path}: opened before the process was forked: open the model again")

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queue jobs by their urgency; a job that has become more urgent is submitted again, and still runs only once.

        Raise BackendError where ``check_process`` does.
        """
        self.check_process()
        with self.lock:
            for job in jobs:
                heapq.heappush(self._queue, (job.urgency, next(self._numbers), job))
                self._queued.notify()

    def wait(self, jobs: Iterable[Job]) -> None:
        """Wait until all jobs are done; raise the error of the first one that failed, ModelFileError if closed."""
        with self.lock:
            for job in jobs:
                while not job.done:
                    if self._closed:
                        raise ModelFileError(self.path, "the file is closed")
                    self._finished.wait()
                if job.error is not None:
                    raise job.error

    def _work(self, handles: Sequence[int]) -> None:
        while True:
            with self.lock:
                while not self._queue and not self._closed:
                    self._queued.wait()
                if self._closed:
                    return
                job = heapq.heappop(self._queue)[2]
                if job.begun:
                    continue
                job.begun = True
            try:
                job.run(handles)
            except BaseException as error:
                job.error = error
            with self.lock:
                job.done = True
                self._finished.notify_all()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel the jobs that have not begun, and wait until the others have ended, whether they failed or not."""
        with self.lock:
            for job in jobs:
                job.done |= not job.begun
                job.begun = True
            while not all(job.done for job in jobs):
                self._finished.wait()

    def close(self) -> None:
        """Drop queued jobs, wait until the running ones end, stop the threads and close the files."""
        if os.getpid() != self._process:  # a forked child has the descriptors but no threads; the lock may stay taken
            self._close_handles()
            return
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._queue.clear()
            self._queued.notify_all()
            self._finished.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._close_handles()


def read_pages(handle: int, path: str, buffer: memoryview, offset: int, least: int) -> None:
    """Fill ``buffer``, a number of whole pages, from the page-aligned ``offset`` of an open file; the file may end
    inside the last page.

    least: number of bytes that must be read. Raise ModelFileError if the file cannot be read or is too short.
    """
    done = 0
    while done < least:
        try:
            os.lseek(handle, offset + done, os.SEEK_SET)
            got = os.readv(handle, [buffer[done:]])
        except OSError as error:
            raise ModelFileError(path, f"cannot read: {error.strerror}", offset + done) from None
        done += got
        if done < least and (not got or got % mmap.PAGESIZE):
            raise ModelFileError(path, "the file ends here, though it was longer when it was opened", offset + done)
