"""Every test runs with the flags that a run sets, and shares one compilation cache with the others."""

from rookery.run import startup

startup.prepare()
