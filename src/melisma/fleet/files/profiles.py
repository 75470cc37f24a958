"""Assumed speed and link of known devices, used until a device is measured.

`compute` is the training speed of the whole device as a share of one core of the machine that runs
Melisma; links have rates that such devices reach in practice. These are rough figures for plans and
emulation, not benchmarks (the Mays papers list the hardware of their devices, but no rates), and a
learner's own measurements replace them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """The assumed speed and link of a kind of device."""

    compute: float
    downlink_bps: float
    uplink_bps: float
    latency_s: float
    description: str


PROFILES = {
    "raspberry-pi-1": Profile(0.02, 20e6, 20e6, 0.005, "one ARM11 core, 700 MHz, WiFi"),
    "raspberry-pi-3a": Profile(
        0.10, 25e6, 25e6, 0.005, "four A53 cores, 1.4 GHz, 512 MB, WiFi (Pi1)"
    ),
    "raspberry-pi-4": Profile(0.25, 40e6, 40e6, 0.004, "four A72 cores, 1.5 GHz, 4 GB, WiFi (Pi3)"),
    "raspberry-pi-400": Profile(
        0.30, 40e6, 40e6, 0.004, "four A72 cores, 1.8 GHz, 4 GB, WiFi (Pi2)"
    ),
    "raspberry-pi-5": Profile(0.75, 80e6, 80e6, 0.003, "four A76 cores, 2.4 GHz, WiFi"),
    "jetson-nano": Profile(0.60, 300e6, 300e6, 0.001, "128 CUDA cores, 920 MHz, Ethernet"),
    "jetson-orin-nano": Profile(4.0, 600e6, 600e6, 0.001, "1024 CUDA cores, Ethernet"),
    "rtx-2070-super": Profile(20.0, 900e6, 900e6, 0.0005, "2560 CUDA cores, Ethernet"),
    "phone": Profile(0.30, 15e6, 15e6, 0.030, "a recent phone, LTE"),
    "laptop": Profile(2.0, 150e6, 150e6, 0.003, "four cores, WiFi"),
    "desktop": Profile(4.0, 900e6, 900e6, 0.0005, "eight cores, Ethernet"),
}
