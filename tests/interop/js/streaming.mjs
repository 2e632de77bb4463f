// A client of the official TypeScript SDKs that calls tools as it is told on its stdin.
//   node streaming.mjs FOLDER v1|v2|v2-modern URL
// FOLDER is where node_modules is. Orders and news are lines of JSON, as in `streaming_peer.py`.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [folder, sdk, url] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const who = { name: 'typescript-peer', version: '1.0.0' };

async function connect() {
  const from = sdk === 'v1' ? '@modelcontextprotocol/sdk/client' : '@modelcontextprotocol/client';
  const { Client } = require(sdk === 'v1' ? `${from}/index.js` : from);
  const { StreamableHTTPClientTransport } = require(sdk === 'v1' ? `${from}/streamableHttp.js` : from);
  const mode = sdk === 'v2-modern' ? { pin: '2026-07-28' } : 'legacy';
  const client = new Client(who, sdk === 'v1' ? {} : { versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

function tell(key, news) {
  console.log(JSON.stringify({ key, ...news }));
}

const client = await connect();
const calls = new Map();

async function call({ key, name, arguments: given }) {
  const giving = new AbortController();
  calls.set(key, giving);
  const onprogress = ({ progress, message }) => tell(key, { progress, message });
  const options = { onprogress, signal: giving.signal, timeout: 120_000, resetTimeoutOnProgress: true };
  const params = { name, arguments: given };
  try {
    const result =
      sdk === 'v1'
        ? await client.callTool(params, undefined, options)
        : await client.callTool(params, options);
    tell(key, { result: result.content.map((block) => block.text) });
  } catch (error) {
    tell(key, { failed: String(error) });
  }
}

tell('', { ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.cancel) calls.get(order.key).abort('no longer needed');
  else call(order);
}
await client.close();
process.exit(0);
