"""The HTTP face: routes, bodies, errors and event streams."""

# Under these keys of a request's ASGI `state` the listener offers a function that closes the connection at once, and a
# cancel scope that it cancels when the client has closed the connection.
ABORT = "pattern.abort"
GONE = "pattern.gone"
# Here the border offers a function that authenticates the request's token again.
REAUTHENTICATE = "pattern.reauthenticate"
