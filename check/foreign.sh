# check/foreign.sh: packages of another release or another architecture, unpacked into a folder.
#
# Who may call it: check/emulator.sh and tests/tagging/packages.sh source it, behind check/setup.sh. apt
# works here with lists, a cache and a record of what is installed that lie in the folder's own apt/: the
# system's are neither read nor changed, and no root is needed. It deliberately knows no package by name.
#
# SPDX-License-Identifier: Apache-2.0

foreign_release() { sed -n "s/^$1=\"\\{0,1\\}\\([^\"]*\\)\"\\{0,1\\}\$/\\1/p" /etc/os-release; } # KEY

# The archives that the system's own packages come from, a line each: address, name of the release.
foreign_archives() {
    LC_ALL=C apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u
}

foreign_apt() { # FOLDER ARCHITECTURE COMMAND...
    local apt=$1/apt architecture=$2
    shift 2
    LC_ALL=C apt-get -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" \
        -o "Dir::Etc::SourceList=$apt/sources.list" -o "Dir::Etc::SourceParts=$apt/parts" \
        -o "Dir::Etc::Preferences=/dev/null" -o "Dir::Etc::PreferencesParts=$apt/parts" \
        -o "Dir::State=$apt/state" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::status=$apt/status" \
        -o "Dir::Cache=$apt/cache" -o "Dir::Log=$apt" -o Debug::NoLocking=1 -o Acquire::Retries=3 \
        -o APT::Sandbox::User= -o APT::Install-Recommends=false -o Acquire::Languages=none "$@"
}

# foreign_unpack FOLDER ARCHITECTURE SOURCES PACKAGE...: the packages of the archive that SOURCES (lines of
# sources.list) name, and whatever they depend on, unpacked under FOLDER. Fails with apt's own words.
foreign_unpack() {
    local folder=$1 architecture=$2 sources=$3 package
    shift 3
    rm -rf "$folder/apt"
    mkdir -p "$folder"/apt/{parts,state,lists/partial,cache/archives/partial} && : >"$folder/apt/status" || return 1
    printf '%s\n' "$sources" >"$folder/apt/sources.list"
    foreign_apt "$folder" "$architecture" -qq update || return 1
    foreign_apt "$folder" "$architecture" -qq install --download-only -y "$@" || return 1
    for package in "$folder"/apt/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$folder" || return 1
    done
    rm -rf "$folder/apt/cache" "$folder/apt/lists"
}
