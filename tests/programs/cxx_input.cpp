/* cxx_input.cpp: a small program that gives a C++ compiler much to do.
 *
 * Who may call it: cxx.sh compiles and runs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <unsigned N>
struct tower {
    using type = std::tuple<std::integral_constant<unsigned, N>, typename tower<N - 1>::type>;
    static std::map<unsigned, std::vector<std::string>> build() {
        auto below = tower<N - 1>::build();
        below[N % 7].push_back(std::to_string(N * N));
        return below;
    }
};
template <>
struct tower<0> {
    using type = std::tuple<>;
    static std::map<unsigned, std::vector<std::string>> build() { return {}; }
};

template <std::size_t... I>
std::vector<std::function<int(int)>> functions(std::index_sequence<I...>) {
    return {[](int x) { return static_cast<int>(x * (I + 1) % 97); }...};
}

int main() {
    const std::regex word("([a-z]+)-([0-9]{1,3})(?:,|$)");
    std::ostringstream text;
    for (int i = 0; i < 300; i++) text << "weir-" << i % 500 << (i % 2 ? "," : ",x-");
    const std::string input = text.str();
    std::unordered_map<std::string, int> counts;
    for (std::sregex_iterator it(input.begin(), input.end(), word), end; it != end; ++it)
        counts[(*it)[2].str()]++;
    std::map<std::string, int> sorted(counts.begin(), counts.end());
    std::cout << sorted.size() << '\n';
    for (const auto& [row, cells] : tower<120>::build())
        std::cout << row << ' ' << cells.size() << ' ' << cells.back() << '\n';
    int sum = 0;
    for (const auto& f : functions(std::make_index_sequence<150>())) sum += f(11);
    std::vector<std::variant<int, std::string, std::shared_ptr<std::set<int>>>> mixed;
    for (int i = 0; i < 100; i++)
        if (i % 3 == 0)
            mixed.emplace_back(i);
        else if (i % 3 == 1)
            mixed.emplace_back(std::string(static_cast<std::size_t>(i), 'v'));
        else
            mixed.emplace_back(std::make_shared<std::set<int>>(std::set<int>{i, i + 1, i + 2}));
    std::stable_sort(mixed.begin(), mixed.end(),
                     [](const auto& a, const auto& b) { return a.index() < b.index(); });
    std::cout << sum << ' ' << mixed.front().index() << ' ' << mixed.back().index() << '\n';
}
