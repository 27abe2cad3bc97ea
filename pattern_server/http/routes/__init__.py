"""One module per resource; `pattern_server.http.app` lists them."""
