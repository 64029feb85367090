"""A wire between SuperNodes and their SuperLink that counts the bytes on it."""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from contextlib import suppress


class Wire:
    """A port of 127.0.0.1 that leads to another one. It understands nothing of what it carries, such as TLS."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.up = self.down = 0
        """Bytes from the nodes, and to them."""
        self._to = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "Wire":
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the wire could not be laid")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()  # without waiting: nodes may hold on to it, and asyncio.run ends their connections

    async def _connect(self, from_node: StreamReader, to_node: StreamWriter) -> None:
        """Until one of the two has gone, or the wire is cut."""
        with suppress(OSError, asyncio.CancelledError):
            from_link, to_link = await asyncio.open_connection("127.0.0.1", self._to)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(from_node, to_link, "up"))
                both.create_task(self._carry(from_link, to_node, "down"))
        to_node.close()

    async def _carry(self, source: StreamReader, sink: StreamWriter, way: str) -> None:
        try:
            while part := await source.read(1 << 16):
                setattr(self, way, getattr(self, way) + len(part))
                sink.write(part)
                await sink.drain()
        except OSError:  # torn off, as by a node that was killed
            return
        finally:
            sink.close()
