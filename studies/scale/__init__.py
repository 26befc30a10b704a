"""The planned scale in virtual time: regions side by side, each in a process of its own, and the loss of one."""
