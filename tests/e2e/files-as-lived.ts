// Files as their users live with them, on whatever runtime the service has: large uploads, cuts, users' rights, watches and links.
import { createHash, randomBytes } from "node:crypto";
import https from "node:https";
import { connect, type TLSSocket } from "node:tls";
import { beforeAll, describe, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import type { WireAnswer } from "../conformance/wire.ts";
import { type Client, eventually } from "../fixtures/client.ts";

const mebibyte = 1_048_576;
const patienceMs = 240_000;

const q = (path: string, more = ""): string => `/v1/files?path=${encodeURIComponent(path)}${more}`;
const jsonOf = (answer: WireAnswer): Record<string, unknown> =>
  JSON.parse(answer.body.toString()) as Record<string, unknown>;

/** `large`: by default several times what the kernel's sockets hold on the way. */
export function filesAsLived(client: Client, large = 48 * mebibyte): void {
  const largeBytes = large + 4_321;
  const { target } = client.session;
  let sandbox: TestSandbox;
  beforeAll(async () => {
    sandbox = await client.create();
    await client.shell(
      sandbox,
      "useradd -m ann; groupadd crew; usermod -aG crew ann; chmod 700 /root; mkdir -p /srv/crew; chgrp crew /srv/crew; chmod 2770 /srv/crew",
    );
  });
  const put = (path: string, body: Buffer, headers: Record<string, string> = {}): Promise<WireAnswer> =>
    client.call(sandbox, "PUT", q(path), { body, headers, deadlineMs: patienceMs });
  const usedBytes = async (of = sandbox): Promise<number> =>
    Number(await client.shell(of, "sync; df -B1 --output=used / | tail -1"));

  /** A TLS connection of its own to the sandbox, for requests that no client would send whole. */
  async function raw(of = sandbox): Promise<TLSSocket> {
    const { edgeHost: host, edgePort: port, ca } = target;
    const socket = connect({ host, port, ca, servername: of.domain.replace(/:\d+$/, "") });
    socket.on("error", () => undefined);
    socket.resume();
    await new Promise((resolve) => socket.once("secureConnect", resolve));
    return socket;
  }

  describe("large files", () => {
    test("go in and come out whole, with their checksum", async () => {
      const bytes = randomBytes(largeBytes);
      const sha256 = createHash("sha256").update(bytes).digest("hex");
      const answer = await put("/root/large", bytes, { "x-content-sha256": sha256 });
      expect(answer.status, answer.body.toString().slice(0, 500)).toBe(200);
      expect(jsonOf(answer)).toMatchObject({ size: largeBytes });
      expect(await client.shell(sandbox, "sha256sum < /root/large")).toContain(sha256);
      const read = await client.call(sandbox, "GET", q("/root/large"), { deadlineMs: patienceMs });
      expect(read.body.equals(bytes)).toBe(true);
      const { etag = "" } = read.headers;
      const again = { headers: { "if-none-match": etag } };
      expect((await client.call(sandbox, "GET", q("/root/large"), again)).status).toBe(304);
      const other = await put("/root/large", bytes, { "x-content-sha256": "0".repeat(64) });
      expect(other.status).toBe(400);
      expect(await client.shell(sandbox, "sha256sum < /root/large")).toContain(sha256);
    });

    test("that are cut off leave the old one, and nothing on the disk", async () => {
      await put("/root/cut", Buffer.from("whole"));
      const before = await usedBytes();
      const host = sandbox.domain;
      const head = `PUT ${q("/root/cut")} HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${sandbox.token}\r\n`;
      const piece = Buffer.alloc(3 * mebibyte, "c");
      const chunk = [`${piece.length.toString(16)}\r\n`, piece, "\r\n"];
      const cuts: (string | Buffer)[][] = [
        [head],
        [`${head}content-length: ${8 * mebibyte}\r\n\r\n`],
        [`${head}content-length: ${8 * mebibyte}\r\n\r\n`, piece],
        [`${head}content-length: ${piece.length}\r\n\r\n`, piece.subarray(1)],
        [`${head}transfer-encoding: chunked\r\n\r\n`, ...chunk],
        [`${head}transfer-encoding: chunked\r\n\r\n`, ...chunk, "0\r\n"],
        [`${head}transfer-encoding: chunked\r\n\r\n`, ...chunk, "nonsense"],
      ];
      for (const parts of cuts) {
        const socket = await raw();
        for (const part of parts) await new Promise((resolve) => socket.write(part, resolve));
        await new Promise((resolve) => setTimeout(resolve, 200));
        socket.destroy();
      }
      // Less than the smallest of what was sent.
      const after = await eventually(usedBytes, (bytes) => bytes < before + 2 * mebibyte);
      expect(after).toBeLessThan(before + 2 * mebibyte);
      expect((await client.call(sandbox, "GET", q("/root/cut"))).body.toString()).toBe("whole");
    });

    test("that do not fit are 507, change nothing and are gone; so is an append", async () => {
      const small = await client.create({ disk_mb: 1_024 });
      await client.shell(
        small,
        "echo kept > /root/kept; fallocate -l $(($(df -B1 --output=avail / | tail -1) - 20000000)) /root/filler",
      );
      const body = Buffer.alloc(large, "f");
      const send = (more = ""): Promise<WireAnswer> =>
        client.call(small, "PUT", q("/root/kept", more), { body, deadlineMs: patienceMs });
      for (const more of ["", "&append=true"])
        expect(jsonOf(await send(more)), more).toMatchObject({ code: "resource_exhausted" });
      expect(await client.shell(small, "cat /root/kept")).toBe("kept\n");
      await client.shell(small, "rm /root/filler");
      expect((await send()).status).toBe(200);
    });
  });

  describe("a user's rights", () => {
    const as = { "x-file-user": "ann" };
    const asAnn = (method: string, path: string, body?: Buffer): Promise<WireAnswer> =>
      client.call(sandbox, method, q(path), { headers: as, ...(body && { body }) });

    test("are the kernel's to say, whatever links are in the way while they are used", async () => {
      await client.shell(sandbox, "echo secret > /root/secret; mkdir -p /home/ann/d; chown ann /home/ann/d");
      // Swaps a directory of hers with a link to root's home as fast as it can.
      const swap =
        "import os\nos.chdir('/home/ann')\nwhile True:\n try:\n  os.rename('d','e'); os.symlink('/root','d'); os.unlink('d'); os.rename('e','d')\n except OSError: pass\n";
      const swapping = client.exec(sandbox, ["timeout", "6", "python3", "-c", swap], { user: "ann" });
      const asked: WireAnswer[] = [];
      while (asked.length < 200) {
        asked.push(
          ...(await Promise.all([
            asAnn("GET", "/home/ann/d/secret"),
            asAnn("PUT", "/home/ann/d/secret", Buffer.from("x")),
            asAnn("DELETE", "/home/ann/d/secret"),
            client.call(sandbox, "POST", "/v1/files/chmod", {
              headers: as,
              json: { path: "/home/ann/d", mode: "0777", recursive: true },
            }),
          ])),
        );
      }
      await swapping;
      expect(asked.filter(({ status }) => status >= 500).map(({ body }) => body.toString())).toEqual([]);
      expect(asked.map(({ body }) => body.toString()).filter((text) => text.includes("secret\n"))).toEqual(
        [],
      );
      expect(await client.shell(sandbox, "cat /root/secret; stat -c %a /root /root/secret")).toBe(
        "secret\n700\n644\n",
      );
    });

    test("are hers by her groups too, and what she makes is hers", async () => {
      const made = await asAnn("PUT", "/srv/crew/file", Buffer.alloc(2 * mebibyte));
      expect(jsonOf(made)).toMatchObject({ user: "ann", group: "crew", size: 2 * mebibyte });
      expect((await asAnn("PUT", "/etc/file", Buffer.from("x"))).status).toBe(403);
      expect((await asAnn("GET", "/etc/shadow")).status).toBe(403);
    });
  });

  describe("a watch", () => {
    interface Events {
      text: string;
      ended: boolean;
      close(): void;
    }
    function watch(path: string): Events {
      const { edgeHost: host, edgePort: port, ca } = target;
      const events: Events = { text: "", ended: false, close: () => request.destroy() };
      const request = https.get(
        {
          host,
          port,
          ca,
          servername: sandbox.domain.replace(/:\d+$/, ""),
          agent: false,
          path: `/v1/files/watch?recursive=true&path=${encodeURIComponent(path)}`,
          headers: { host: sandbox.domain, authorization: `Bearer ${sandbox.token}` },
        },
        (response) => {
          response.on("data", (chunk: Buffer) => (events.text += chunk.toString()));
          response.on("close", () => (events.ended = true));
          response.on("error", () => undefined);
        },
      );
      request.on("error", () => (events.ended = true));
      return events;
    }
    const tells = async (events: Events, what: string): Promise<void> => {
      await eventually(
        () => events.text,
        (text) => text.includes(what),
      );
      expect(events.text).toContain(what);
    };

    test("tells of what programs and requests do, and lets go when its client has gone", async () => {
      await client.shell(sandbox, "mkdir -p /root/watched");
      const events = watch("/root/watched");
      await tells(events, "event: ready");
      await put("/root/watched/file", Buffer.from("x"));
      await tells(events, 'event: created\ndata: {"path":"/root/watched/file","entry_type":"file"}');
      await put("/root/watched/file", Buffer.from("y"));
      await tells(events, 'event: modified\ndata: {"path":"/root/watched/file"');
      await client.shell(
        sandbox,
        "cd /root/watched; mkdir -p a/b; echo z > a/b/c; mv a d; chmod 600 d/b/c; rm d/b/c",
      );
      for (const [event, path] of [
        ["created", "a/b"],
        ["created", "a/b/c"],
        ["renamed", "d"],
        ["attributes", "d/b/c"],
        ["deleted", "d/b/c"],
      ])
        await tells(events, `event: ${event}\ndata: {"path":"/root/watched/${path}"`);
      expect(events.text).not.toContain("cloche-tmp");
      events.close();
    });

    test("ends with a suspend, and can be had anew after it", async () => {
      const events = watch("/root/watched");
      await tells(events, "event: ready");
      await client.gateway("SuspendSandbox", { id: sandbox.id });
      const stateIs = (state: string) =>
        eventually(
          async () =>
            (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id })).sandbox
              .state,
          (seen) => seen === state,
          patienceMs,
        );
      expect(await stateIs("SANDBOX_STATE_SUSPENDED")).toBe("SANDBOX_STATE_SUSPENDED");
      expect(await eventually(() => events.ended, Boolean)).toBe(true);
      await client.gateway("ResumeSandbox", { id: sandbox.id });
      expect(await stateIs("SANDBOX_STATE_RUNNING")).toBe("SANDBOX_STATE_RUNNING");
      const again = watch("/root/watched");
      await tells(again, "event: ready");
      await put("/root/watched/after", Buffer.from("x"));
      await tells(again, 'event: created\ndata: {"path":"/root/watched/after"');
      again.close();
    });
  });

  describe("a link", () => {
    const linkTo = async (json: object): Promise<string> => {
      const answer = jsonOf(await client.call(sandbox, "POST", "/v1/files/link", { json }));
      return String(answer["url"]);
    };
    /** As whoever has it: without a token, at the address that it names or another one. */
    const use = (url: string, of = sandbox, method = "GET", body?: Buffer): Promise<WireAnswer> => {
      const { pathname, search } = new URL(url);
      return client.session.wire.dataPlane(of.domain, { method, path: pathname + search, body });
    };

    test("is good through suspend and resume, for its own sandbox and no fork of it", async () => {
      await put("/root/linked", Buffer.from("linked"));
      const url = await linkTo({ path: "/root/linked", operation: "read", expires_in_seconds: 600 });
      const once = await linkTo({ path: "/root/linked", operation: "read", once: true });
      expect(new URL(url).host).toBe(sandbox.domain);
      expect((await use(url)).body.toString()).toBe("linked");
      expect((await use(once)).status).toBe(200);
      const { sandbox: copy } = await client.gateway<{ sandbox: TestSandbox }>("ForkSandbox", {
        source_sandbox_id: sandbox.id,
      });
      client.session.adopt(copy.id);
      const forked = await eventually(
        async () =>
          (await client.gateway<{ sandbox: TestSandbox & { state: string } }>("GetSandbox", { id: copy.id }))
            .sandbox,
        ({ state }) => state === "SANDBOX_STATE_RUNNING",
        patienceMs,
      );
      expect((await use(url, forked)).status).toBe(401);
      await client.gateway("SuspendSandbox", { id: sandbox.id });
      await client.gateway("UpdateSandbox", { id: sandbox.id, auto_resume: true });
      // A good one wakes it; used up is used up.
      const woken = await eventually(
        () => use(url),
        ({ status }) => status === 200,
        patienceMs,
      );
      expect(woken.body.toString()).toBe("linked");
      expect((await use(once)).status).toBe(401);
      expect((await use(url, sandbox, "PUT", Buffer.from("x"))).status).toBe(403);
    });

    test("ends with its sandbox", async () => {
      const brief = await client.create();
      const json = { path: "/etc/hostname", operation: "read" };
      const url = String(jsonOf(await client.call(brief, "POST", "/v1/files/link", { json }))["url"]);
      expect((await use(url, brief)).status).toBe(200);
      await client.gateway("DeleteSandbox", { id: brief.id });
      const status = await eventually(
        async () => (await use(url, brief)).status,
        (seen) => seen === 404,
        60_000,
      );
      expect(status).toBe(404);
    });

    test("takes a large file once, and from nobody who cuts it off", async () => {
      const body = Buffer.alloc(8 * mebibyte, "l");
      const url = await linkTo({ path: "/root/by-link", operation: "write" });
      expect(jsonOf(await use(url, sandbox, "PUT", body))).toMatchObject({ size: body.length, user: "root" });
      const socket = await raw();
      const { pathname, search } = new URL(url);
      socket.write(
        `PUT ${pathname}${search} HTTP/1.1\r\nhost: ${sandbox.domain}\r\ncontent-length: 99\r\n\r\ncut`,
      );
      await new Promise((resolve) => setTimeout(resolve, 300));
      socket.destroy();
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(await client.shell(sandbox, "stat -c %s /root/by-link")).toBe(`${body.length}\n`);
    });
  });
}
