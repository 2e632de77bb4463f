// A server of the official TypeScript SDK that wants a token, and says whose it is.
//   node protected_server.mjs FOLDER PORT ISSUER
// FOLDER is where node_modules is. Each token is introspected at the issuer.
import { createRequire } from 'node:module';

const [folder, port, issuer] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const sdk = '@modelcontextprotocol/sdk/server';
const { McpServer } = require(`${sdk}/mcp.js`);
const { StreamableHTTPServerTransport } = require(`${sdk}/streamableHttp.js`);
const { requireBearerAuth } = require(`${sdk}/auth/middleware/bearerAuth.js`);
const { getOAuthProtectedResourceMetadataUrl, mcpAuthMetadataRouter } = require(`${sdk}/auth/router.js`);
const { InvalidTokenError } = require(`${sdk}/auth/errors.js`);
const express = require('express');

const resource = new URL(`http://127.0.0.1:${port}/mcp`);

async function verifyAccessToken(token) {
  const answer = await fetch(`${issuer}/introspect`, { method: 'POST', body: new URLSearchParams({ token }) });
  const found = await answer.json();
  if (!found.active || found.aud !== resource.href) throw new InvalidTokenError('not a token of this server');
  return {
    token,
    clientId: found.client_id,
    scopes: found.scope.split(' '),
    expiresAt: Math.floor(Date.now() / 1000) + 300,
    extra: { subject: found.sub },
  };
}

function makeServer() {
  const server = new McpServer({ name: 'protected', version: '1.0.0' });
  server.registerTool('whoami', { description: 'Say whose account the call uses.' }, ({ authInfo }) => ({
    content: [{ type: 'text', text: authInfo.extra.subject }],
  }));
  return server;
}

const metadata = await (await fetch(`${issuer}/.well-known/oauth-authorization-server`)).json();
const app = express();
app.use(express.json());
app.use(mcpAuthMetadataRouter({ oauthMetadata: metadata, resourceServerUrl: resource, scopesSupported: ['tools'] }));
const guard = requireBearerAuth({
  verifier: { verifyAccessToken },
  requiredScopes: ['tools'],
  resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(resource),
});
app.post('/mcp', guard, async (request, response) => {
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  response.on('close', () => transport.close());
  await makeServer().connect(transport);
  await transport.handleRequest(request, response, request.body);
});
app.all('/mcp', (request, response) => response.status(405).end());
app.listen(Number(port), '127.0.0.1');
