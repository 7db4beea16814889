# shellcheck shell=bash
# Fetching servers that are written in Java.

# In the locale C, Java does not find files whose path has other letters.
java_locale=LC_ALL=C.UTF-8

# maven_jars NAME VERSION: where its jars are; the same for every instance.
maven_jars() { echo "$root/tools/$1-$2"; }

# maven_fetch NAME VERSION: the jars of NAME_project, which prints a pom.xml. Alone.
#
# Fills a directory beside its place and moves it there when it is whole. What an
# interrupted run has downloaded is in Maven's own store, and is checked there.
maven_fetch() {
  local name=$1 version=$2 jars new
  jars=$(maven_jars "$name" "$version")
  new=$jars.new
  [ ! -d "$jars" ] || return 0
  echo "fetching $name $version"
  rm -rf "$new"
  mkdir -p "$new"
  "${name}_project" >"$new/pom.xml"
  try_thrice env "$java_locale" mvn -B -C -Dstyle.color=never -f "$new/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$new" >"$root/tools/$name.log" 2>&1 </dev/null || {
    echo "Maven could not fetch $name $version; $root/tools/$name.log says:" >&2
    grep -m 2 ERROR "$root/tools/$name.log" >&2
    return 1
  }
  # Native parts for other systems.
  rm -f "$new"/*osx* "$new"/*windows*
  mv "$new" "$jars"
}
