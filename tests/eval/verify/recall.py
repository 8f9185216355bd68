"""What a program can compute of the knowledge that pack ``recall`` asks for."""


def gb2312_hanzi() -> int:
    """Count the Han characters of GB 2312: rows 16 to 87 of its table, as Python's codec has it."""
    pairs = (bytes((row, cell)) for row in range(0xB0, 0xF8) for cell in range(0xA1, 0xFF))
    return sum(bool(pair.decode("gb2312", "ignore")) for pair in pairs)
