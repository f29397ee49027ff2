"""A module whose import starts a thread, as some libraries do."""

import threading
import time

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
