"""Measurements of request traces: cost on the fast lane, rows lost by faults, and duration of queries.

lane       microseconds a request, without spans and with
faults     the store killed, stopped, slow, full, away for longer than the spool; a gateway killed with rows waiting, or
           with a disk that is full
questions  ten million rows in the local store: milliseconds of the command line's queries
"""
