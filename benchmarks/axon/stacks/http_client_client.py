"""The standard library's http.client."""

import http.client


class Client:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, body: bytes) -> bytes:
        self.connection.request("POST", "/", body)
        return self.connection.getresponse().read()

    def close(self) -> None:
        self.connection.close()
