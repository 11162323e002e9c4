"""Seconds and bytes in, readable text out."""


def format_seconds(seconds: float) -> str:
    """``0.00132`` becomes ``1.32 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def format_bytes(count: float) -> str:
    """``15728640`` becomes ``15.0 MiB``."""
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def format_bit_rate(bytes_per_second: float) -> str:
    """``1.25e9`` becomes ``10 Gbit/s``."""
    bits = 8 * bytes_per_second
    for scale, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= scale:
            return f"{bits / scale:.4g} {unit}"
    return f"{bits / 1e3:.4g} kbit/s"


def format_percent(fraction: float) -> str:
    """``0.0312`` becomes ``+3.1 %``."""
    return f"{100 * fraction:+.1f} %"
