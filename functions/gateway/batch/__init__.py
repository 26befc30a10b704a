"""Batches: files of requests, answered in their own time on the batch band, whatever becomes of the gateway meanwhile.

    routes        what clients say and see (`shown`)
    service       what all parts share; made once, where a store is configured
    log           what is true of a batch: numbered records in S3, each written once
    conductor     takes up batches that nobody works on; a `run` each
    run           validate, answer, put together; a heartbeat while it lives, stops when it is cancelled or overtaken
    line_sender   one line as a request like any other, at the batch's pace (`pacer`)
    parts         answers become durable
    composing     parts become files
    collecting    what is old goes

The decisions are in `functions.decisions.batch`.
"""
