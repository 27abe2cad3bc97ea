"""The HTTP face: routes, bodies, errors and event streams."""

# Under this key of a request's ASGI `state` the listener offers an async function that closes the connection at once.
ABORT = "pattern.abort"
