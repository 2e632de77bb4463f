// Who is signed in, and what that person may do. The server checks every request again.
import { useMutation, useQuery } from "@tanstack/react-query";
import { api, ApiError, data } from "./api/client";
import { switchNotificationsOff } from "./push";
import { Problem } from "./ui/parts";

const UNSUBSCRIBE_TIMEOUT_MS = 2_000;

export function useSession() {
  return useQuery({ queryKey: ["session"], queryFn: () => data(api.GET("/api/session")), staleTime: 60_000 });
}

/** Whether the person may change things. Buttons for changes are hidden otherwise. */
export const useMayWrite = () => useSession().data?.may_write ?? false;

/** End the session here and, if there is one, at the provider of the account. */
async function signOut() {
  // The next person at this browser must not read the requests of this one. The session is needed
  // for it, and a push service that does not answer must not keep the session alive.
  await Promise.race([switchNotificationsOff(), new Promise((done) => window.setTimeout(done, UNSUBSCRIBE_TIMEOUT_MS))]);
  // The gateway takes a form only, as its own sign-in pages send one.
  const answer = await fetch("/logout", { method: "POST", body: new URLSearchParams(), headers: { accept: "application/json" } });
  if (!answer.ok) throw new ApiError("The gateway did not end the session.", answer.status);
  const said: unknown = await answer.json().catch(() => ({}));
  const location = (said as { location?: unknown }).location;
  window.location.assign(typeof location === "string" && location ? location : "/login");
}

export function SignOutButton({ className = "button" }: { className?: string }) {
  const leaving = useMutation({ mutationFn: signOut });
  return (
    <>
      <button type="button" className={className} disabled={leaving.isPending} onClick={() => leaving.mutate()}>
        Sign out
      </button>
      <Problem error={leaving.error} />
    </>
  );
}
