"""Memory of large results that is used again while others are in use."""

import threading

import numpy as np

from ds4ref.kernels.cpu.reuse import LEAST, Memory

ROW = LEAST // 4


def data(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_of_a_dead_array_serves_the_next_of_its_size_while_another_lives() -> None:
    memory = Memory()
    first, second = memory.empty((2, ROW), np.float32), memory.empty((2, ROW), np.float32)
    first[:], second[:] = 1, 2
    place = data(first)
    del first
    assert (memory.kept, memory.lent) == (2 * LEAST, 2 * LEAST)
    third = memory.empty((ROW, 2), np.int32)
    assert data(third) == place and third.shape == (ROW, 2) and third.dtype == np.int32
    third[:] = 7
    assert (second == 2).all() and (memory.kept, memory.lent) == (0, 4 * LEAST)


def test_a_view_keeps_its_memory() -> None:
    memory = Memory()
    other, array = memory.empty((ROW,), np.float32), memory.empty((ROW,), np.float32)
    array[:] = np.arange(ROW)
    view = array.reshape(2, -1)[1:, ::2]
    del array
    assert memory.kept == 0
    new = memory.empty((ROW,), np.float32)
    new[:] = -1
    np.testing.assert_array_equal(view[0], np.arange(ROW // 2, ROW, 2))
    del view, other


def test_no_more_memory_is_taken_than_was_lent_at_once() -> None:
    memory = Memory()
    arrays = [memory.empty((n * ROW,), np.float32) for n in (1, 2, 3)]
    arrays.pop()
    arrays.pop()
    assert (memory.kept, memory.lent) == (5 * LEAST, LEAST)
    arrays.append(memory.empty((2 * ROW,), np.float32))
    assert (memory.kept, memory.lent) == (3 * LEAST, 3 * LEAST)
    arrays.append(memory.empty((4 * ROW,), np.float32))  # of a size that is not kept
    assert (memory.kept, memory.lent) == (0, 7 * LEAST)


def test_threads_take_and_give_back() -> None:
    memory = Memory()
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            array = memory.empty(((1 + turn % 3) * ROW,), np.float32)
            array[:] = number
            if not (array == number).all():
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and (memory.kept, memory.lent) == (0, 0)
