"""Request traces measured: what they cost the lane, what is lost when somebody dies, how fast questions are.

lane       microseconds a request, without spans and with
faults     the store killed, stopped, slow, full, away for longer than the spool; a gateway killed with rows waiting, or
           with a disk that is full
questions  ten million rows in the local store: what the command line asks, in milliseconds
"""
