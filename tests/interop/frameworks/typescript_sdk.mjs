// Calls a tool with the official TypeScript SDK and prints what it shows. Arguments: URL, tool.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages are in the folder where the script is started.
const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");

const [url, name] = process.argv.slice(2);
const client = new Client({ name: "notes-agent", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const result = await client.callTool({ name, arguments: { name: "draft" } });
console.log(result.content.map((part) => part.text).join(""));
await client.close();
