import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/** Lists tools and calls one with the JDK's own HTTP client, as it is set up unless told otherwise. */
public class PlainClient {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static String session = "";

    public static void main(String[] words) throws Exception {
        URI mcp = URI.create(words[0] + "/mcp");
        String version = "2025-11-25";
        String hello = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\""
            + version + "\",\"capabilities\":{},\"clientInfo\":{\"name\":\"jdk\",\"version\":\"17\"}}}";
        HttpResponse<String> greeted = send(mcp, hello);
        session = greeted.headers().firstValue("mcp-session-id").orElseThrow();
        System.out.println(greeted.statusCode() + " " + greeted.version());
        System.out.println(send(mcp, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}").statusCode());
        System.out.println(send(mcp, "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\"}").body());
        System.out.println(send(mcp, "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":"
            + "{\"name\":\"example__echo\",\"arguments\":{\"message\":\"from the JDK\"}}}").body());
        URI tool = URI.create(words[0] + "/tools/example__echo");
        System.out.println(send(tool, "{\"message\":\"by REST\"}").body());
    }

    private static HttpResponse<String> send(URI place, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(place)
            .timeout(Duration.ofSeconds(60))
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
            .POST(HttpRequest.BodyPublishers.ofString(body));
        if (!session.isEmpty()) {
            request.header("Mcp-Session-Id", session);
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }
}
