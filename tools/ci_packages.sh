#!/bin/sh
# Debian packages that some tests run against: PostgreSQL, Chromium, Slurm. Only where we are root and
# apt is there; a machine without them skips those tests with a reason. Idempotent, quiet, and never fatal.
# One line a package: a program that shows it is there, then the packages that bring it.
set -u

wanted() {
  cat <<'ROWS'
/usr/lib/postgresql/*/bin/initdb postgresql
/usr/bin/chromium chromium
/usr/sbin/slurmctld slurm-wlm munge
ROWS
}

missing=""
while read -r program packages; do
  found=no
  for path in $program; do  # the pattern is a word on purpose: the shell expands it
    [ -x "$path" ] && found=yes
  done
  [ "$found" = yes ] || missing="$missing $packages"
done <<ROWS
$(wanted)
ROWS

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "ci_packages: not installed, so that some tests are skipped:$missing" >&2
  exit 0
fi

# Nothing that is installed here may start a service or make a cluster: tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
fi

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
apt() {
  apt-get -qq -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}
install() {
  for attempt in 1 2 3; do
    # shellcheck disable=SC2086 # several packages
    apt install -y --no-install-recommends -o Dpkg::Options::=--force-confold "$@" && return 0
    sleep $((attempt * 2))
    apt update
  done
  return 1
}
apt update
if ! install $missing; then
  for package in $missing; do  # one that is not to be had must not keep the others away
    install "$package" || echo "ci_packages: $package could not be installed" >&2
  done
fi
grep -h '^E:' "$log" | sort -u | head -5 >&2
rm -f "$log"
exit 0
