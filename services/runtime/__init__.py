"""What every service runs on: the loop, its handlers, its birth from a zygote or from nothing."""
