"""The HTTP interface: routes, bodies, errors and event streams."""

# Under these keys of a request's ASGI `state` the listener offers a function that closes the connection at once, one
# to call for a request with a valid token, so that its connection is not closed to make room for others, and a cancel
# scope that it cancels when the client has closed the connection.
ABORT = "pattern.abort"
KEEP = "pattern.keep"
GONE = "pattern.gone"
# Here a route stores what to do if the client closes the connection before it has the whole answer.
LEFT = "pattern.left"
# Here the border offers a function that authenticates the request's token again; it raises `Unauthorized` where the
# token is no longer valid, or for another caller or other rights.
REAUTHENTICATE = "pattern.reauthenticate"
# Here a stream stores what serves it, given the border's `send` and what counts a stream that the server ends early,
# once the framework has returned: else each of a thousand readers would keep 10 KiB of its frames.
STREAM = "pattern.stream"
