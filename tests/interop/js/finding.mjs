// A client of the official TypeScript SDKs that finds its tools: `finding/story.py` in another
// language, telling the same.
//   node finding.mjs FOLDER URL MODE QUERY
// FOLDER is where node_modules is; MODE is one of v1, v2 and v2-modern.
import { createRequire } from 'node:module';

const [folder, url, mode, query] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const from = '@modelcontextprotocol/sdk/client';
const sdk =
  mode === 'v1'
    ? { ...require(`${from}/index.js`), ...require(`${from}/streamableHttp.js`) }
    : require('@modelcontextprotocol/client');

const era = mode === 'v2-modern' ? { pin: '2026-07-28' } : 'legacy';
const options = mode === 'v1' ? {} : { versionNegotiation: { mode: era } };
const client = new sdk.Client({ name: 'typescript-peer', version: '1.0.0' }, options);
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url)));

async function call(name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) throw new Error(JSON.stringify(result));
  return { data: result.structuredContent, text: result.content[0].text };
}

const listed = async () => (await client.listTools()).tools.map((tool) => tool.name);

const first = await listed();
const found = await call('search_tools', { query, max_results: 3 });
const name = found.data.tools[0].name;
const args = { subject: 'the weather in May', limit: 3 };
const called = await call('call_tool', { name, arguments: args });
const ledger = (await call('session_tools', {})).data;
const then = await listed();
const directly = await call(name, args);
const gone = (await call('session_tools', { evict: [name] })).data;
const last = await listed();
console.log(
  JSON.stringify({
    first,
    found: found.data,
    read: found.text,
    called: called.text,
    directly: directly.text,
    ledger,
    then,
    gone,
    last,
  }),
);
await client.close();
process.exit(0);
