"""What the machine's devices and links say about themselves, gathered when a hang is reported.

**In**: the kernel's log, `nvidia-ml-py` or amdsmi where they are installed, counters below
``/sys/class/infiniband``. **Out**: sentences on what is abnormal on this node, and a finding that
names the device's rank where one device alone is.

* `probe` is a program of its own: a driver that hangs must not take the monitor with it, so it
  runs as a child with a time limit and prints `signs`;
* `evidence` runs it before a report and adds what it said; a rank is found by the PCI address of
  its device, which its ring has. `errors` runs it while ranks wait, for errors that no patience
  mends.

**Rules.** Nothing is asked while all is well. What cannot be read is said once, and is no evidence.

**Imported by** `monitor` alone; imports `diagnosis` for its model.
"""
