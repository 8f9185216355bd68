"""The suite on AArch64 without such a machine: Debian's arm64 Python under qemu's user emulation (``make arm``).

What it shows and does not show: docs/how-to/emulate-arm.md.
"""
