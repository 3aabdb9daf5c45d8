/**
 * Ends a server without waiting for connections that nobody uses. Node's own `closeIdleConnections` leaves out those that
 * never carried a request, and clients open such ones ahead.
 */

import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** The connections of one server; made before it listens. */
export class Connections {
  readonly #answering = new Map<Socket, number>();
  #isClosing = false;
  #allClosed: (() => void) | null = null;

  constructor(server: Server) {
    server.on("connection", (socket: Socket) => {
      if (this.#isClosing) {
        socket.destroy();
        return;
      }
      this.#answering.set(socket, 0);
      socket.once("close", () => {
        this.#answering.delete(socket);
        if (this.#answering.size === 0) this.#allClosed?.();
      });
    });
    // Counted before the request is handled, so that it is never taken for idle.
    server.prependListener("request", ({ socket }: IncomingMessage, response: ServerResponse) => {
      this.#count(socket, 1);
      response.once("close", () => {
        this.#count(socket, -1);
        if (this.#isClosing) this.#closeIdle();
      });
    });
  }

  /** Resolves when every answer has been sent, or the time is over and the rest was cut off. */
  async close(graceMs: number): Promise<void> {
    this.#isClosing = true;
    const closed = new Promise<void>((resolve) => {
      this.#allClosed = resolve;
    });
    if (this.#answering.size === 0) return;
    const timer = setTimeout(() => {
      for (const socket of this.#answering.keys()) socket.destroy();
    }, graceMs);
    this.#closeIdle();
    await closed;
    clearTimeout(timer);
  }

  #count(socket: Socket, change: number): void {
    const running = this.#answering.get(socket);
    if (running !== undefined) this.#answering.set(socket, running + change);
  }

  #closeIdle(): void {
    for (const [socket, running] of this.#answering) if (running === 0) socket.destroySoon();
  }
}
