// A client of the official TypeScript SDK that carries out a plan and prints what came of it.
//   node peer.mjs FOLDER v1|v2|v2-modern URL < plan.json
// FOLDER is where node_modules is; the plan and the answers are the ones of `peer_plans.py`.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [folder, sdk, url] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const plan = JSON.parse(readFileSync(0, 'utf8'));
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

async function all(list, key) {
  const found = [];
  let cursor;
  do {
    const page = await list(cursor === undefined ? {} : { cursor });
    found.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

async function call(client, { name, arguments: given }) {
  const progress = [];
  const onprogress = (news) => progress.push({ ...news });
  const params = { name, arguments: given };
  const result =
    sdk === 'v1'
      ? await client.callTool(params, undefined, { onprogress })
      : await client.callTool(params, { onprogress });
  return { ...result, progress };
}

const steps = {
  tools: (client) => all((page) => client.listTools(page), 'tools'),
  resources: (client) => all((page) => client.listResources(page), 'resources'),
  templates: (client) => all((page) => client.listResourceTemplates(page), 'resourceTemplates'),
  prompts: (client) => all((page) => client.listPrompts(page), 'prompts'),
  call,
  read: (client, { uri }) => client.readResource({ uri }),
  prompt: (client, { name, arguments: given }) => client.getPrompt({ name, arguments: given }),
};

const client = await connect();
const answers = {};
for (const [name, step] of Object.entries(plan)) {
  try {
    answers[name] = await steps[step.do](client, step);
  } catch (error) {
    answers[name] = { failed: String(error), code: error.code };
  }
}
await client.close();
console.log(JSON.stringify(answers));
