"""FEEL: batch sizes and radio slots together, by Ren, Yu and Ding.

`optimum` is the way in, and finds the exact optimum; `uplink` says how much can be sent by a given
time; `whole` makes whole batches of it.
"""

from melisma.allocation.feel.optimum import feel as feel
