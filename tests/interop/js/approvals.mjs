// A client of the official TypeScript SDKs whose calls wait for a person: `approving/lines.py` in
// another language, told and answering in the same way.
//   node approvals.mjs FOLDER < orders
// FOLDER is where node_modules is; the mode of an order is one of v1, v2 and v2-modern.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.argv[2]}/package.json`);
const REFUSAL = 'dev.comity/refusal';
const FOREVER_MS = 600_000;

function load(mode) {
  if (mode !== 'v1') return require('@modelcontextprotocol/client');
  const from = '@modelcontextprotocol/sdk/client';
  return { ...require(`${from}/index.js`), ...require(`${from}/streamableHttp.js`) };
}

function connect({ mode, url, key }) {
  const sdk = load(mode);
  const era = mode === 'v2-modern' ? { pin: '2026-07-28' } : 'legacy';
  const options = mode === 'v1' ? {} : { versionNegotiation: { mode: era } };
  const client = new sdk.Client({ name: 'typescript-peer', version: '1.0.0' }, options);
  const headers = { authorization: `Bearer ${key}` };
  const transport = new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  return client.connect(transport).then(() => client);
}

async function call(order) {
  const client = await connect(order);
  const heard = order.progress ? { onprogress: () => {} } : {};
  const options = { timeout: FOREVER_MS, ...heard };
  const params = { name: order.tool, arguments: {} };
  try {
    const result =
      order.mode === 'v1'
        ? await client.callTool(params, undefined, options)
        : await client.callTool(params, options);
    const text = result.content.map((part) => part.text ?? '').join('\n');
    const refusal = result._meta?.[REFUSAL];
    return { kind: refusal?.error_type ?? (result.isError ? 'failed' : 'ok'), text };
  } finally {
    await client.close();
  }
}

async function carryOut(order) {
  let timer;
  const late = new Promise((resolve) => {
    timer = setTimeout(() => resolve({ kind: 'late' }), order.seconds * 1000);
  });
  const failed = (error) => ({ kind: 'failed', text: String(error).slice(0, 500) });
  const said = await Promise.race([call(order).catch(failed), late]);
  clearTimeout(timer);
  console.log(JSON.stringify({ id: order.id, said }));
}

for await (const line of createInterface({ input: process.stdin })) carryOut(JSON.parse(line));
process.exit(0);
