"""What every service runs on: the loop, its handlers, its launch from a zygote or from nothing."""
