// A client made with the TypeScript SDK.  Lists the tools, calls `mcp.echo`, a failing call and one with progress, and
// prints what it saw as one JSON object.
//
//   node client.mjs http URL
//   node client.mjs stdio COMMAND ARGUMENT…

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [kind, target, ...rest] = process.argv.slice(2);
const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args: rest, env: process.env });

const client = new Client({ name: "acceptance", version: "1" }, { capabilities: {} });
await client.connect(transport);

const { tools } = await client.listTools();
const echo = await client.callTool({ name: "mcp.echo", arguments: { message: "héllo" } });
const wrong = await client.callTool({ name: "mcp.echo", arguments: { message: 5 } });
let unknown = null;
try {
  await client.callTool({ name: "no.such.tool", arguments: {} });
} catch (error) {
  unknown = error.code;
}
const many = await Promise.all(
  Array.from({ length: 50 }, (_, n) => client.callTool({ name: "mcp.echo", arguments: { message: String(n) } })),
);
// Taken from the transport: the SDK forgets whom to tell as soon as it has read the answer, so that a last notice that
// comes with the answer in one read is lost to `onprogress`, though it was received.
const progress = [];
const deliver = transport.onmessage;
transport.onmessage = (message, extra) => {
  if (message.method === "notifications/progress") progress.push(message.params.progress);
  deliver(message, extra);
};
await client.callTool({ name: "test_tool_with_progress", arguments: {} }, undefined, { onprogress: () => {} });

console.log(
  JSON.stringify({
    server: client.getServerVersion(),
    tools: tools.map((tool) => tool.name),
    echo,
    wrong,
    unknown,
    many: many.map((result) => result.structuredContent.message),
    progress,
  }),
);
await client.close();
