// On a phone: the screens that have no place in the bar at the bottom.
import { SCREENS, To } from "../navigate";
import { SignOutButton, useSession } from "../session";
import { Icon } from "../ui/icons";
import { visible } from "../ui/text";

export function More() {
  const session = useSession();
  return (
    <div className="screen">
      <h1>More</h1>
      <div className="tiles">
        {SCREENS.map((each) => (
          <To key={each.path} path={each.path} className="tile">
            <span className="bar">
              <span style={{ width: "1.25rem" }}>
                <Icon name={each.icon} />
              </span>
              {each.name}
            </span>
          </To>
        ))}
      </div>
      {session.data && (
        <div className="card">
          <p>
            Signed in as <b>{visible(session.data.label || session.data.principal)}</b>
          </p>
          <SignOutButton />
        </div>
      )}
    </div>
  );
}
